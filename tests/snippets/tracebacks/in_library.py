import json
import statistics

try:
    statistics.mean([])
except statistics.StatisticsError:
    import traceback

    traceback.print_exc()
json.loads('{"a": 1,}')
