"""The application's own, of the same name as a folder of this project."""

import os

BOOTSTRAP, DESTINATION = os.environ["BOOTSTRAP"], os.environ["DESTINATION"]
