"""The JVM's room: which Java runs, and which jars. Knows no other room; `uow.broker` and `spark_sink` look here."""
