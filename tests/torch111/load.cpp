// A submission in the challenge's own runtime, libtorch 1.11.
//
//   load saved_model.pt images.bin embeddings.bin    scores every image
//   load --operators                                 prints every operator schema
//
// images.bin: per image int32 height, int32 width, then height * width * 3 bytes of RGB, row by row.
// embeddings.bin: per image int32 count, then that many float32.
#include <torch/csrc/jit/runtime/operator.h>
#include <torch/script.h>

#include <fstream>
#include <iostream>

namespace {

// Channels last in memory and first in shape, as torchvision's PILToTensor gives it to the host.
bool read_image(std::istream& in, at::Tensor& image_1CHW) {
  int32_t size[2];
  if (!in.read(reinterpret_cast<char*>(size), sizeof size)) return false;
  auto image_HWC = torch::empty({size[0], size[1], 3}, torch::kUInt8);
  in.read(reinterpret_cast<char*>(image_HWC.data_ptr()), image_HWC.numel());
  image_1CHW = image_HWC.permute({2, 0, 1}).unsqueeze(0);
  return true;
}

void score(const char* model_path, const char* images_path, const char* embeddings_path) {
  torch::NoGradGuard no_grad;
  auto model = torch::jit::load(model_path);
  model.eval();
  std::ifstream images(images_path, std::ios::binary);
  std::ofstream embeddings(embeddings_path, std::ios::binary);
  at::Tensor image;
  while (read_image(images, image)) {
    auto embedding = model.forward({image}).toTensor()[0].flatten().to(torch::kFloat).contiguous();
    const int32_t count = embedding.numel();
    embeddings.write(reinterpret_cast<const char*>(&count), sizeof count);
    embeddings.write(static_cast<const char*>(embedding.data_ptr()), count * sizeof(float));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "--operators") {
    for (const auto& op : torch::jit::getAllOperators()) std::cout << op->schema() << "\n";
    return 0;
  }
  if (argc != 4) {
    std::cerr << "usage: load saved_model.pt images.bin embeddings.bin | load --operators\n";
    return 2;
  }
  try {
    score(argv[1], argv[2], argv[3]);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
