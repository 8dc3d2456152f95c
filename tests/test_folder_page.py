"""The table of what is read of a model's folder, whose parts lie beside MLX."""

from scripts.docs.folder_page import PAGE, folder_page


def test_the_table_of_a_folder_is_fresh() -> None:
    assert PAGE.read_text("utf-8") == folder_page(), f"docs/{PAGE.name} is old: run `make docs`"
