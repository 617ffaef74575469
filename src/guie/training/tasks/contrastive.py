"""Contrastive image-text training (CLIP, Radford et al. 2021), with open_clip's loss and tokenizer.

It trains the small CLIP that replaces a downloaded one in the demo and the tests.
"""

from functools import partial
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from guie.base.errors import UserError
from guie.base.files import replacing
from guie.config import RunConfig
from guie.data.dataset import Batch, Classes
from guie.losses.base import LossAndLogs, on_device_of
from guie.models.backbones.open_clip import OpenClip, create_clip, import_open_clip
from guie.models.embedder import Embedder
from guie.training.micro_batches import in_micro_batches
from guie.training.tasks.base import Task


class ContrastiveTask(Task):
    """A whole CLIP; its image encoder is the embedder, at native dimension."""

    def __init__(self, config: RunConfig, classes: Classes, pretrained: bool = True):
        super().__init__(config)
        model = config.model
        if model.backbone.library != "open_clip" or model.head is not None:
            raise UserError("task contrastive: needs an open_clip backbone and model.head: null")
        open_clip = import_open_clip()
        self.clip = create_clip(model.backbone, pretrained and bool(model.backbone.pretrained))
        tower = OpenClip.of_clip(self.clip, model.backbone, model.image.size_px)
        self.embedder = Embedder(tower, head=None)
        self.tokenize = open_clip.get_tokenizer(
            model.backbone.name, context_length=self.clip.context_length
        )
        several = torch.distributed.is_initialized()
        self.loss = open_clip.ClipLoss(
            local_loss=True,
            gather_with_grad=True,
            rank=torch.distributed.get_rank() if several else 0,
            world_size=torch.distributed.get_world_size() if several else 1,
        )

    def parts(self) -> dict[str, dict[str, nn.Parameter]]:
        return {"backbone": dict(self.clip.named_parameters())}

    def forward(self, batch: Batch) -> LossAndLogs:
        """Return the contrastive loss. Raises UserError if the batch has no captions."""
        if batch.captions is None:
            raise UserError("task contrastive: the manifest has no caption column; add one")
        images_BCHW = batch.images_BCHW
        assert images_BCHW is not None  # a frozen CLIP has no features in place of images
        text_BD = on_device_of(self.tokenize(batch.captions), images_BCHW)
        encode_image = partial(self.clip.encode_image, normalize=True)
        encode_text = partial(self.clip.encode_text, normalize=True)
        image_BD = in_micro_batches(encode_image, batch.pieces, images_BCHW)
        text_BD = in_micro_batches(encode_text, batch.pieces, text_BD)
        scale = self.clip.logit_scale.exp().clamp(max=100.0)
        loss = self.loss(image_BD.float(), text_BD.float(), scale)
        matched = (image_BD @ text_BD.T).argmax(dim=1)
        accuracy = (matched == torch.arange(len(matched), device=matched.device)).float().mean()
        return self.with_shared_terms(batch, image_BD, loss, {"accuracy": accuracy})

    def save(self, folder: Path, stem: str, frozen_file: str | None = None) -> None:
        """Write the image encoder to `<stem>.safetensors`, the whole CLIP to `<stem>_clip.safetensors`.

        open_clip loads the second with `create_model(name, pretrained=file)`.
        """
        super().save(folder, stem, frozen_file)
        state = {k: v.detach().cpu().contiguous() for k, v in self.clip.state_dict().items()}
        with replacing(folder / f"{stem}_clip.safetensors") as temporary:
            save_file(state, temporary)
