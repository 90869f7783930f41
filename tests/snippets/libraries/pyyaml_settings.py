import yaml

settings = yaml.safe_load("name: report\ntables: [sales, costs]\nlimits: { rows: 100, share: 0.5 }\n")
print(settings["tables"], settings["limits"]["share"])
print(yaml.safe_dump(settings, sort_keys=False, allow_unicode=True))
try:
    yaml.safe_load("a: [1, 2")
except yaml.YAMLError as error:
    print(type(error).__name__, error.problem_mark.line)
