"""The places on the wire: topic names and settings, headers, the partitioner, destination policies.

Pure, except `admin`, which talks to Kafka. Sees `schemas` and nothing else of the project.
"""
