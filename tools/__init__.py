"""Programs of the maintainers: locks, generated pages, set-up."""
