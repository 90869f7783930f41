class Late:
    def __del__(self):
        try:
            import colorsys

            print("imported", colorsys.__name__)
        except BaseException as error:
            print(type(error).__name__, error)


kept = Late()
