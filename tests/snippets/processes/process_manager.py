import multiprocessing


def work(values, table):
    values.append("from the child")
    table["key"] = len(values)


if __name__ == "__main__":
    with multiprocessing.get_context("fork").Manager() as manager:
        values, table = manager.list(["from the parent"]), manager.dict()
        process = multiprocessing.get_context("fork").Process(target=work, args=(values, table))
        process.start()
        process.join()
        print(list(values), dict(table))
