"""Networks, and the LightningModules that train them on a client."""

if __name__ != "fl_lightning.models":
    raise ImportError(f"import fl_lightning.models, not {__name__}: under two names every class would exist twice")

from fl_lightning.models.classifier import ImageClassifier as ImageClassifier
from fl_lightning.models.cnn import CifarAlexNet as CifarAlexNet
from fl_lightning.models.cnn import FedLAWLeNet as FedLAWLeNet
from fl_lightning.models.cnn import LeNet as LeNet
from fl_lightning.models.cnn import PooledCNN as PooledCNN
from fl_lightning.models.cnn import SimpleCNN as SimpleCNN
from fl_lightning.models.cnn import TwoLayerCNN as TwoLayerCNN
from fl_lightning.models.detection.detector import Detector as Detector
from fl_lightning.models.detection.yolo import YOLOv8 as YOLOv8
from fl_lightning.models.group_norm import WithGroupNorm as WithGroupNorm
from fl_lightning.models.mlp import LogisticRegression as LogisticRegression
from fl_lightning.models.mlp import MultilayerPerceptron as MultilayerPerceptron
from fl_lightning.models.mlp import TwoNN as TwoNN
from fl_lightning.models.projection import WithProjection as WithProjection
from fl_lightning.models.resnet import CifarResNet as CifarResNet
from fl_lightning.models.texts.causal_lm import CausalLM as CausalLM
from fl_lightning.models.texts.small import BagOfWords as BagOfWords
from fl_lightning.models.texts.small import CharLSTM as CharLSTM
from fl_lightning.models.texts.small import TextLSTM as TextLSTM
from fl_lightning.models.texts.text_transformer import TextTransformer as TextTransformer
from fl_lightning.models.timm_network import TimmNetwork as TimmNetwork

__all__ = [name for name, value in vars().items() if callable(value)]
