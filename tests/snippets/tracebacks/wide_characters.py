größe = {"东京": 1}
print(größe["东京"]), größe["北京"] + größe["é"]
