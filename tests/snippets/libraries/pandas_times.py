import pandas as pd

moment = pd.Timestamp("2026-03-29 01:30", tz="Europe/Paris")
print(moment, moment + pd.Timedelta(hours=1), moment.tz_convert("Asia/Tokyo"), moment.day_name())
print(pd.date_range("2026-01-31", periods=3, freq="ME"), pd.Series(pd.to_datetime(["2026-01-01"])).dt.strftime("%d %b"))
