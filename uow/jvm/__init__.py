"""Finding Java and the jars. Imports nothing else of the project; used by `uow.embedded.broker` and `uow.spark_sink`."""
