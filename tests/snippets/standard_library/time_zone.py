import datetime
import os
import time
import zoneinfo

print(time.tzname, time.timezone, time.daylight, datetime.datetime.now().astimezone().tzname())
print(time.strftime("%Y-%m-%d %H:%M", time.localtime(0)), zoneinfo.ZoneInfo("Europe/Paris").utcoffset(datetime.datetime(2026, 7, 1)))
os.environ["TZ"] = "Asia/Tokyo"
time.tzset()
print(time.tzname, time.strftime("%H:%M", time.localtime(0)))
