"""index.html of an inspection: predictions and rollouts, attention maps, distances, features, positions, filters.

Maps are tiny PNG files, a pixel for each patch, which the browser enlarges: the page is small and readable at any width.
"""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vitrine.core.figures import (
    build_image,
    encode_map,
    encode_overlay,
    encode_photo,
    encode_png,
    encode_signed_map,
    shorten_label,
)
from vitrine.core.html_report import Page, Section
from vitrine.core.page_images import Chart, ColourScale, Exhibit, Gallery, MapGrid, Picture, Strip, Tiles
from vitrine.core.page_parts import Details, Part, Row, Subheading, Table, format_short_percent, link_file
from vitrine.inspection.distance import Distances
from vitrine.inspection.figures import InspectedImage, MaskedImages, draw_distance_panels, tile_similarities
from vitrine.inspection.filters import Filters
from vitrine.inspection.inspect_model import Attention, Inspection
from vitrine.inspection.positions import Similarities

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PHOTO_SIDE = 320  # pixels of the photographs under a rollout
NUM_OPEN = 2  # images whose attention maps are not folded away
MAX_TABLES = 4  # of position embeddings; models with one for each layer have them all as PNG
CELL = 8  # pixels of a patch where outliers are framed
QUERIES = {"class": "the class token", "mean": "all patches (mean)"}


def build_page(
    inspection: Inspection, title: str, page: Path, masked: MaskedImages | None = None, command: str | None = None
) -> Page:
    """Build the page of an inspection, which is written to `page`."""
    sections = [build_rollout_section(inspection, page)]
    attention = inspection.attention
    if attention is not None:
        sections += [build_attention_section(inspection, attention), build_distance_section(attention.distances)]
    sections.append(build_feature_section(inspection))
    if inspection.similarities:
        sections.append(build_position_section(inspection.similarities))
    sections.append(build_filter_section(inspection.filters))
    if masked is not None:
        sections.append(build_masked_section(masked, [image.name for image in inspection.images]))
    return Page(
        kind="Inspection",
        title=describe_predictions(inspection),
        lede="What the model says, which patches its answer comes from, and what its weights look like.",
        facts=list_facts(inspection, title),
        sections=sections,
        command=command,
        remarks=["numbers in numbers.json and arrays.npz beside this page, figures as PNG"],
    )


def describe_predictions(inspection: Inspection) -> str:
    """Return what the model says as a sentence; without a head, what is shown."""
    predictions = inspection.predictions
    if not predictions:
        return f"What the features of {len(inspection.images)} images look like"
    surest = max(predictions, key=lambda each: each.probabilities[0])
    sure = f"{shorten_label(surest.classes[0])}, {format_short_percent(surest.probabilities[0], 0)} sure"
    if len(predictions) == 1:
        return f"The model says {sure}"
    return f"Of {len(predictions)} images, the model is surest of {sure}"


def list_facts(inspection: Inspection, title: str) -> list[tuple[str, str]]:
    """List the facts of an inspection."""
    height, width = inspection.images[0].model_input.shape[:2]
    facts = [("Model", title), ("Reads", f"{height} x {width} pixels"), ("Images drawn", str(len(inspection.images)))]
    if inspection.attention is not None:
        choice, distances = inspection.attention.choice, inspection.attention.distances
        facts.append(("Query", QUERIES.get(choice.query, f"patch {choice.query}")))
        facts.append(("Distances over", f"{distances.num_images} images"))
    return facts


def build_rollout_section(inspection: Inspection, page: Path) -> Section:
    """Build the gallery of images with their predictions, and the rollout over them if there is attention."""
    rollouts = [None] * len(inspection.images) if inspection.attention is None else inspection.attention.rollouts
    exhibits = []
    for number, (image, rollout) in enumerate(zip(inspection.images, rollouts, strict=True)):
        prediction = inspection.predictions[number] if inspection.predictions else None
        others = [] if prediction is None else list(zip(prediction.classes, prediction.probabilities, strict=True))[1:]
        exhibits.append(
            Exhibit(
                encode_photo(image.model_input, PHOTO_SIDE),
                title="" if prediction is None else prediction.classes[0],
                after="" if prediction is None else f"{format_short_percent(prediction.probabilities[0])} sure",
                lines=["then " + ", ".join(f"{name} {format_short_percent(share)}" for name, share in others)]
                if others
                else [],
                name=shorten_name(image),
                url=None if image.path is None else link_file(image.path, page),
                overlay=None if rollout is None else encode_overlay(rollout),
            )
        )
    if inspection.attention is None:
        gallery = Gallery(exhibits, is_large=True)
        return Section("What the model says", "Predictions", "The images as the model sees them.", [gallery])
    query = inspection.attention.choice.query
    text = (
        f"Attention rollout: contribution of each patch to the output of {QUERIES.get(query, f'the patch at {query}')}, the "
        "attention of all layers multiplied. Linear from the darkest to the brightest patch; hover or uncheck to see the bare "
        "image, as the model sees it."
    )
    gallery = Gallery(exhibits, overlay_label="Show rollout", is_large=True)
    return Section("The output comes from the bright patches (figures 6 and 14)", "Rollout, figure 6", text, [gallery])


def shorten_name(image: InspectedImage) -> str:
    """Return the name of an image, of a long path the last two parts."""
    return "/".join(Path(image.name).parts[-2:])


def build_attention_section(inspection: Inspection, attention: Attention) -> Section:
    """Build the attention maps of each image by layer and head."""
    choice = attention.choice
    columns = [f"head {head}" for head in choice.heads]
    rows: list[Part] = []
    for image, maps in zip(inspection.images, attention.maps, strict=True):
        cells = [
            (f"layer {layer}", [encode_map(np.sqrt(heat / max(float(heat.max()), 1e-12))) for heat in heads])
            for layer, heads in zip(choice.layers, maps, strict=True)
        ]
        photo = encode_photo(frame_query(image.model_input, choice.query, maps.shape[2:]))
        rows.append(Row(shorten_name(image), [MapGrid(columns, cells, photo)]))
    parts = rows[:NUM_OPEN]
    if len(rows) > NUM_OPEN:
        parts.append(Details(f"{len(rows) - NUM_OPEN} more images", rows[NUM_OPEN:]))
    text = (
        f"Attention of {QUERIES.get(choice.query, f'the patch at {choice.query}')} to each patch. Colours are the square root "
        "of the share of the map's own maximum. Layers and heads count from 0."
    )
    scale = ColourScale("0", "maximum")
    return Section("What each head attends to", "Attention maps", text, [scale, *parts])


def frame_query(pixels: np.ndarray, query: str, grid: tuple[int, ...]) -> np.ndarray:
    """Return the image with a frame around the query patch; unchanged for class and mean."""
    if "," not in query:
        return pixels
    from PIL import ImageDraw

    row, column = map(int, query.split(","))
    height, width = pixels.shape[0] / grid[0], pixels.shape[1] / grid[1]
    image = build_image(pixels).convert("RGB")
    box = (column * width, row * height, (column + 1) * width - 1, (row + 1) * height - 1)
    ImageDraw.Draw(image).rectangle(box, outline="red", width=max(1, round(width / 8)))
    return np.asarray(image)


def build_distance_section(distances: Distances) -> Section:
    """Build the figure of attention distances by layer, and their table."""
    values = distances.among_patches
    first, last = (f"{row.min():.0f} to {row.max():.0f}" for row in (values[0], values[-1]))

    def draw(figure: "Figure") -> None:
        draw_distance_panels(figure, distances)

    chart = Chart(
        draw,
        alt=f"Mean attention distance of each head: {first} pixels in layer 0, {last} in layer {len(values) - 1}.",
        look="Look at the lowest dots of the first layers.",
        caption="Heads near 0 attend locally, as convolutions do. In the second panel attention to the class token and "
        "registers counts as distance 0, as in most published figures.",
        narrow_height=4.6,
    )
    rows = [(f"{layer}", f"{row.mean():.1f}", f"{row.min():.1f}", f"{row.max():.1f}") for layer, row in enumerate(values)]
    table = Table(("layer", "mean of heads, px", "smallest", "largest"), rows)
    text = (
        f"Mean distance in pixels between a patch and what it attends to, over {distances.num_images} images; a dot for each "
        "head."
    )
    title = f"Heads reach {first} pixels in layer 0, {last} in the last (figures 7 and 11)"
    return Section(title, "Distance, figure 7", text, [chart, Details("All layers", [table])])


def build_feature_section(inspection: Inspection) -> Section:
    """Build the patch features of each image as colours, and their norms with outliers framed."""
    features = inspection.features
    largest = float(features.norms.max())
    num_outliers = int(features.outliers.sum())
    rows: list[Part] = []
    for number, image in enumerate(inspection.images):
        colours = encode_png(build_image((255 * features.colours[number]).round().astype(np.uint8)))
        norms = frame_outliers(features.norms[number] / max(largest, 1e-12), features.outliers[number])
        strip = Strip([(encode_photo(image.model_input), "input"), (colours, "features"), (norms, "norms")])
        rows.append(Row(shorten_name(image), [strip]))
    text = (
        "Patches of similar colour have similar features: red, green and blue are the first three principal components over "
        "these images. Norms are of the tokens before the final norm; a frame marks patches above twice the median. Such "
        "outliers hold information about the whole image; models trained with registers have none."
    )
    title = f"{num_outliers:,} of {features.outliers.size:,} patches are outliers" if num_outliers else "No patch is an outlier"
    parts = rows[:NUM_OPEN] + ([Details(f"{len(rows) - NUM_OPEN} more images", rows[NUM_OPEN:])] if rows[NUM_OPEN:] else [])
    return Section(title, "Patch features", text, [ColourScale("norm 0", f"{largest:.3g}"), *parts])


def frame_outliers(norms: np.ndarray, outliers: np.ndarray) -> bytes:
    """Return a PNG of norms in 0..1, enlarged so that outliers can have a frame."""
    from PIL import Image, ImageDraw

    size = (CELL * norms.shape[1], CELL * norms.shape[0])
    image = Image.open(io.BytesIO(encode_map(norms))).convert("RGB").resize(size, Image.Resampling.NEAREST)
    pen = ImageDraw.Draw(image)
    for row, column in zip(*np.nonzero(outliers), strict=True):
        pen.rectangle((CELL * column, CELL * row, CELL * column + CELL - 1, CELL * row + CELL - 1), outline="red")
    return encode_png(image)


def build_position_section(similarities: Sequence[Similarities]) -> Section:
    """Build the similarities of position embeddings, a tile for each patch."""
    parts: list[Part] = []
    for each in similarities[:MAX_TABLES]:
        parts.append(Subheading(each.title))
        values = each.offsets if each.patches is None else tile_similarities(each.patches)
        assert values is not None
        parts.append(Picture(encode_signed_map(values), f"Similarity of position embeddings, {each.title}", is_pixelated=True))
        if each.readout is not None:
            names = ("class token", "distillation token")
            parts.append(Strip([(encode_signed_map(tile), name) for tile, name in zip(each.readout, names, strict=False)]))
    parts.append(ColourScale("\u22121", "1", is_signed=True))
    text = (
        "Cosine similarity of position embeddings. Each tile belongs to one patch and shows its similarity to all patches: "
        "high around the patch itself, and often along its row and column. Nobody told the model which patches are neighbours."
    )
    return Section("Which positions are alike (figures 7 and 10)", "Positions, figure 7", text, parts)


def build_filter_section(filters: Filters) -> Section:
    """Build the filters of the first layer."""
    variance = filters.explained_variance
    images = (255 * filters.scaled).round().astype(np.uint8)
    captions = [""] * len(images) if variance is None else [format_short_percent(float(share)) for share in variance]
    tiles = Tiles(
        [(encode_png(build_image(image)), caption) for image, caption in zip(images, captions, strict=True)], "filter"
    )
    if variance is None:
        return Section("Filters of the first convolution", "Filters", "As they are, each scaled by itself.", [tiles])
    text = (
        "Principal components of the patch embedding filters, with the variance that each explains. They resemble a basis for "
        "the fine structure within a patch."
    )
    share = format_short_percent(float(variance.sum()), 0)
    return Section(f"{len(images)} components explain {share} of the filters (figure 7)", "Filters, figure 7", text, [tiles])


def build_masked_section(masked: MaskedImages, names: Sequence[str]) -> Section:
    """Build the images of masked patch prediction."""
    columns = {"image": masked.image, "corrupted": masked.shown, "target": masked.target, "prediction": masked.prediction}
    rows = [
        Row(name, [Strip([(encode_photo(images[number]), title) for title, images in columns.items()])])
        for number, name in enumerate(names)
    ]
    text = "The corrupted image (masked patches grey), the targets of the corrupted patches, and the model's predictions."
    return Section("What the model predicts for masked patches", "Masked patches", text, rows)
