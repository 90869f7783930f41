text = """never
closed
