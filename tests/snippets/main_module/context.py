import contextvars
import decimal

print(len(contextvars.copy_context()))
variable = contextvars.ContextVar("variable", default="none")
token = variable.set("some")
print(len(contextvars.copy_context()), variable.get(), token.old_value is token.MISSING)
print(decimal.getcontext())
variable.reset(token)
