"""What a reader cannot see in a picture: text that the picture's edge cuts off."""

from unittest.mock import patch


def cut_text(figure):
    """The texts that reach beyond the edge of a figure, as it is drawn at its own size."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    drawn, draw = [], Text.draw

    def recorded(text, renderer, *args, **options):
        drawn.append(text)
        draw(text, renderer, *args, **options)

    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # lays the figure out
    with patch.object(Text, "draw", recorded):
        canvas.draw()
    cut = []
    for text in drawn:
        if text.get_visible() and text.get_text().strip():
            box = text.get_window_extent(canvas.get_renderer())
            if box.x0 < -1 or box.y0 < -1 or box.x1 > figure.bbox.x1 + 1 or box.y1 > figure.bbox.y1 + 1:  # pixels
                cut.append(text.get_text())
    return cut
