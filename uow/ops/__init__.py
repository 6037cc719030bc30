"""Operations on a destination: inspection, checks and repairs. The command line and the worker's web pages print the results."""
