def main():
    print("run as a script")


if __name__ == "__main__":
    main()
