"""Faust: transport driver, app, agent, table, web pages, commands. Wiring, no decisions."""
