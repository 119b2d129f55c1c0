// The models of the examples, put together from the layers.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "network.hpp"

namespace nn {

/// The options of a residual network.
struct resnet_options {
  int depth = 20;       ///< 6 n + 2: 20, 32, 44, 56, 110
  int version = 1;      ///< 1: He et al. 2015 (arXiv:1512.03385); 2: pre-activation, He et al. 2016 (arXiv:1603.05027)
  char shortcut = 'B';  ///< Shortcut between stages; A: padding, B: projection, as in MLBench.
  std::size_t classes = 10;
  extent input{32, 32, 3};
};

/// Returns a residual network for small images: 3 stages of n blocks with 16, 32 and 64 channels. Throws
/// muster::configuration_error for invalid options.
template <class T>
std::unique_ptr<network<T>> make_resnet(const resnet_options& options = {}, const execution& execution = {});

/// Returns ResNet-50 for large images (He et al. 2015), with the stride in the 3x3 convolution of a block, as in most
/// current implementations: 25,557,032 parameters.
template <class T>
std::unique_ptr<network<T>> make_resnet50(std::size_t classes = 1000, const extent& input = {224, 224, 3},
                                          const execution& execution = {});

/// Returns VGG16 with batch normalisation (Simonyan and Zisserman 2014, arXiv:1409.1556) for 32 x 32 images, with a
/// head of 512: 15,253,578 parameters.
template <class T>
std::unique_ptr<network<T>> make_vgg16(std::size_t classes = 10, const execution& execution = {});

/// Variants of the small network.
enum class cnn_variant { plain, dropout, batch_norm };

/// Returns the small network for MNIST's images of the textbooks (Chollet 2017, chapter 5; Tang 2024, Distributed
/// Machine Learning Patterns, chapter 9): three unpadded convolutions of 32, 64 and 64 channels, two poolings, a hidden
/// layer of 64: 93,322 parameters. The variants are Tang's: a dropout of 0.5 before the third convolution, or batch
/// normalisation and a sigmoid after the ReLU of the first and of the second convolution, before the pooling.
template <class T>
std::unique_ptr<network<T>> make_cnn(cnn_variant variant = cnn_variant::plain, std::size_t classes = 10,
                                     const extent& input = {28, 28, 1}, const execution& execution = {});

}  // namespace nn
