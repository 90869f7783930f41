exec("import sys\ntry:\n    sys.exit(12)\nfinally:\n    print('in exec')")
