from sympy import Eq, Matrix, diff, dsolve, exp, Function, integrate, latex, limit, sin, solve, symbols
from sympy.abc import t

x, y = symbols("x y")
print(solve(x**2 - 2, x), solve([Eq(x + y, 3), Eq(x - y, 1)], [x, y]), diff(sin(x) * exp(x), x))
print(integrate(exp(-(x**2)), (x, -float("inf"), float("inf"))).evalf(6), limit(sin(x) / x, x, 0))
print(Matrix([[2, 1], [1, 2]]).eigenvals(), latex(x**2 / y), dsolve(Function("f")(t).diff(t) - Function("f")(t)))
