"""The application's own, of the same name as a folder of this project."""

ORDER = ({"item": "flash drive", "price": 12}, {"item": "book", "price": 18})
