"""The application's own, of the same name as a folder of this project; nobody here uses it, so nobody may load it."""

raise ImportError("the application's spark_sink was taken for a part of uow")
