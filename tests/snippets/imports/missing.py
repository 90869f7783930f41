try:
    import sklearn
except ModuleNotFoundError as error:
    print(error, error.name, error.path)
import json.missing_part
