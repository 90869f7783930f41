import io


class Loud(io.FileIO):
    def close(self):
        if not self.closed:
            print("closing", self.name)
        super().close()


class Buffered(io.BufferedWriter):
    def flush(self):
        super().flush()


one = Loud("one.bin", "w")
two = Buffered(Loud("two.bin", "w"))
two.write(b"two")
