class Phoenix:
    def __del__(self):
        print("del")
        reborn.append(self)


reborn = []
Phoenix()
print(len(reborn))
kept = Phoenix()
