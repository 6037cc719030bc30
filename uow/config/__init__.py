"""The configuration: every setting as data, and how a file and the environment become one."""
