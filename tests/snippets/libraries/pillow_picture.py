from PIL import Image, ImageDraw

picture = Image.new("RGB", (40, 20), "white")
ImageDraw.Draw(picture).rectangle((5, 5, 20, 15), fill=(200, 0, 0))
picture.save("picture.png")
picture.save("picture.jpg", quality=80)
print(Image.open("picture.png").getpixel((10, 10)), picture.histogram()[255])
