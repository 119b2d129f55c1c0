#include "models.hpp"

#include "assemble.hpp"

namespace nn {

template <class T>
std::unique_ptr<network<T>> make_resnet(const resnet_options& options, const execution& how) {
  auto made = std::make_unique<network<T>>(options.input, how);
  assemble_resnet(*made, options);
  return made;
}

template <class T>
std::unique_ptr<network<T>> make_resnet50(std::size_t classes, const extent& input, const execution& how) {
  auto made = std::make_unique<network<T>>(input, how);
  assemble_resnet50(*made, classes);
  return made;
}

template <class T>
std::unique_ptr<network<T>> make_vgg16(std::size_t classes, const execution& how) {
  auto made = std::make_unique<network<T>>(extent{32, 32, 3}, how);
  assemble_vgg16(*made, classes);
  return made;
}

template <class T>
std::unique_ptr<network<T>> make_cnn(cnn_variant variant, std::size_t classes, const extent& input,
                                     const execution& how) {
  auto made = std::make_unique<network<T>>(input, how);
  assemble_cnn(*made, variant, classes);
  return made;
}

template std::unique_ptr<network<float>> make_resnet<float>(const resnet_options&, const execution&);
template std::unique_ptr<network<double>> make_resnet<double>(const resnet_options&, const execution&);
template std::unique_ptr<network<float>> make_resnet50<float>(std::size_t, const extent&, const execution&);
template std::unique_ptr<network<double>> make_resnet50<double>(std::size_t, const extent&, const execution&);
template std::unique_ptr<network<float>> make_vgg16<float>(std::size_t, const execution&);
template std::unique_ptr<network<double>> make_vgg16<double>(std::size_t, const execution&);
template std::unique_ptr<network<float>> make_cnn<float>(cnn_variant, std::size_t, const extent&, const execution&);
template std::unique_ptr<network<double>> make_cnn<double>(cnn_variant, std::size_t, const extent&, const execution&);

}  // namespace nn
