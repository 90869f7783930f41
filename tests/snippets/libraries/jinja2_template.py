import pandas as pd
from jinja2 import Environment, Template

print(Template("{% for name in names %}{{ loop.index }}. {{ name | upper }}\n{% endfor %}").render(names=["a", "b"]))
print(Environment(autoescape=True).from_string("{{ text }}").render(text="<b>"))
styled = pd.DataFrame({"sales": [1.0, 2.0]}).style.format("{:.1f}").highlight_max(color="yellow")
print("background-color: yellow" in styled.to_html(table_uuid="t"))
