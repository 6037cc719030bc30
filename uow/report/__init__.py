"""A report about finished units: one HTML file with plots, which needs no server and no network.

Belongs here: plots (`charts`), the parts of the page (`sections`), HTML (`page`). Does not belong here: reading tables
(`uow.spark_sink.summary`), and the command (`uow.cli.report_command`).
"""
