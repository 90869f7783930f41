spend, budget = 12, 10
assert spend <= budget, f"{spend} is over {budget}"
