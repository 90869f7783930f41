raise BaseExceptionGroup("both", [SystemExit(3), ValueError("x")])
