"""``python -m vkdnn`` is the vkdnn command."""

from vkdnn.cli import main

if __name__ == "__main__":
    main()
