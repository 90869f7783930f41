π = 3.14159
print(f"{π:.2f} 东京 🎉 é", "\N{GREEK SMALL LETTER ALPHA}", "é" == "e\u0301")
class Größe: pass
print(Größe, ascii("🎉"))
