"""Every reader of files from outside, with a good file for it and what is done with it once it is read."""

from dear.cli.predict import _names
from dear.data.images.decode import decode
from dear.data.images.memory import picture_of
from dear.data.settings import DataSettings
from dear.data.sources.splits import read_coop
from dear.reading.files import read_bytes
from dear.roles.phrases import load_pool
from tests.fuzz.readers import data_files, model_files, request_files, run_files
from tests.fuzz.readers.target import Target

PIXELS = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.9, 0.8, 0.7], "rescale_factor": 1 / 255}
WORDS = {"a</w>": 320, "cat</w>": 2368}
TARGETS = {
    "run record": Target("json", run_files.record, run_files.report),
    "transfer record": Target("json", run_files.transfer, run_files.report),
    "retrieval record": Target("json", run_files.retrieval, run_files.report),
    "recipe": Target("yaml", run_files.recipe, run_files.run_recipe),
    "recipe's mark": Target("text", run_files.mark, run_files.claim),
    "list of a report's files": Target("text", run_files.listed, run_files.replace_listed),
    "options (--config)": Target("yaml", run_files.options, run_files.with_options),
    "role table": Target("json", run_files.roles, run_files.show_roles),
    "TEXTSPAN file": Target("text", run_files.spans, run_files.read_spans),
    "phrase pool": Target("text", run_files.phrases, lambda file: load_pool(str(file))),
    "split list": Target("json", data_files.split, lambda file: read_coop(file.parent)),
    "benchmark's classes": Target("text", data_files.ucf, data_files.use_ucf),
    "benchmark's images": Target("text", data_files.ucf_images, data_files.use_ucf),
    "benchmark's labels (MATLAB)": Target("binary", data_files.matlab, data_files.use_matlab),
    "CSV table": Target("text", data_files.csv, data_files.read_table),
    "JSONL table": Target("text", data_files.jsonl, data_files.read_table),
    "class names (JSON)": Target("json", data_files.names_json, data_files.read_names),
    "class names (CSV)": Target("text", data_files.names_csv, data_files.read_names),
    "class names (text)": Target("text", data_files.names_text, data_files.read_names),
    "classes to predict": Target("text", run_files.phrases, _names),
    "templates": Target(
        "text", data_files.templates, lambda file: DataSettings(template=str(file)).templates()
    ),
    "bundle's facts": Target("json", model_files.bundle, model_files.use_bundle, model_files.signed),
    "bundle's tensors": Target(
        "safetensors", model_files.tensors, model_files.use_bundle, model_files.sealed
    ),
    "index's catalogue": Target("sqlite", model_files.index, lambda file: model_files.ask(file.parent)),
    "index's journal": Target("binary", model_files.journal, lambda file: model_files.ask(file.parent)),
    "index of heads": Target("sqlite", model_files.index_of_heads, model_files.ask_heads),
    "index's vectors": Target("binary", model_files.vectors, lambda file: model_files.ask(file.parents[1])),
    "image (PNG)": Target("binary", data_files.image("PNG"), lambda file: decode(file, 23)),
    "image (TIFF)": Target("binary", data_files.image("TIFF"), lambda file: decode(file, 23)),
    "image (lossless WebP)": Target(
        "binary", data_files.image("WEBP", (600, 500), lossless=True), lambda file: decode(file, 23)
    ),
    "large image (TIFF)": Target(
        "binary", data_files.image("TIFF", (600, 500)), lambda file: decode(file, 23)
    ),
    "image in memory (PNG)": Target(
        "binary", data_files.image("PNG"), lambda file: picture_of(read_bytes(file, "image_bytes"), 23)
    ),
    "image (JPEG)": Target("binary", data_files.image("JPEG"), lambda file: decode(file, 23)),
    "saved data set's state": Target("json", data_files.saved("state.json"), data_files.use_saved),
    "saved data set's splits": Target("json", data_files.saved("dataset_dict.json"), data_files.use_saved),
    "saved data set's features": Target("json", data_files.saved("dataset_info.json"), data_files.use_saved),
    "saved data set's Arrow file": Target(
        "arrow", data_files.saved("data-00000-of-00001.arrow"), data_files.use_saved
    ),
    "files of a hub's data set": Target("json", data_files.manifest, data_files.use_manifest),
    "data set in Parquet": Target("parquet", data_files.parquet, data_files.use_parquet),
    "zip": Target("binary", data_files.archive, data_files.use_archive),
    "shard's catalogue": Target("sqlite", model_files.shard, lambda file: model_files.merge(file.parents[1])),
    "shard's vectors": Target(
        "binary", model_files.shard_vectors, lambda file: model_files.merge(file.parents[2])
    ),
    "decode cache": Target("npy", data_files.picture, data_files.use_picture),
    "finding about images": Target(
        "json", data_files.checked, lambda file: data_files.look_again(file.parents[2])
    ),
    "view cache": Target("view", data_files.view, data_files.use_view),
    "vocabulary": Target("json", model_files.vocabulary, model_files.use_vocabulary),
    "weights (safetensors)": Target("safetensors", model_files.weights, model_files.use_weights),
    "index of weights": Target("json", model_files.index_of_weights, model_files.use_weights),
    "weights (.pt)": Target("checkpoint", model_files.checkpoint, model_files.use_checkpoint),
    "form of a request": Target("binary", request_files.form, request_files.send_form),
    "form of several images": Target("binary", request_files.batch, request_files.send_batch),
    "class names of a request": Target("text", request_files.names, request_files.send_names),
    "headers of a request": Target("text", request_files.headers, request_files.send_headers),
    "hub's configuration": Target("json", model_files.architecture, model_files.use_architecture),
    "pixels of a processor": Target(
        "json",
        model_files.saved_by_transformers("processor_config.json", {"image_processor": PIXELS}),
        model_files.use_architecture,
    ),
    "words of a model": Target(
        "json", model_files.saved_by_transformers("vocab.json", WORDS), model_files.use_architecture
    ),
    "merges of a model": Target("text", model_files.merges, model_files.use_architecture),
    "CLIP's tokenizer": Target("json", model_files.clips_tokenizer, model_files.use_clips_tokenizer),
    "branch in the hub's cache": Target("text", model_files.branch, model_files.use_branch),
    "descriptions of classes": Target("json", model_files.descriptions, model_files.use_descriptions),
    "tokenizer": Target("json", model_files.tokenizer, model_files.use_tokenizer),
    "tokenizer's settings": Target("json", model_files.tokenizer_settings, model_files.use_tokenizer),
    **{
        f"sentence model's {name}": Target(
            form, model_files.sentence_model(file), model_files.use_sentence_model
        )
        for name, form, file in (
            ("configuration", "json", "config.json"),
            ("modules", "json", "modules.json"),
            ("pooling", "json", "1_Pooling/config.json"),
            ("prompts", "json", "config_sentence_transformers.json"),
            ("weights", "safetensors", "model.safetensors"),
        )
    },
}
