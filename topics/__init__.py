"""Topics and headers: topic names and settings, header names, the partitioner, the path map, destination policies.

Pure, except `admin`, which talks to Kafka. Sees `schemas` and nothing else of the project.
"""
