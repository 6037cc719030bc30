"""The engine's ports on librdkafka: the only Kafka I/O of the worker."""
