module example.org/uow

go 1.21
