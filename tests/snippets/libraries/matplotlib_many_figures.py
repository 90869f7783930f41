import matplotlib.pyplot as plt

for _ in range(22):
    figure = plt.figure()
print(len(plt.get_fignums()), figure.number)
plt.close("all")
print(plt.get_fignums(), plt.figure().number)
