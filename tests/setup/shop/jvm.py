"""The application's own, of the same name as a package of this project; nobody here uses it, so nobody may load it."""

raise ImportError("the application's jvm.py was taken for a part of uow")
