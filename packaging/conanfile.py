"""A recipe for Conan 2, against the libraries of the system: `conan create packaging`. An option of a part is an option of
muster's build, such as `-o muster/*:tcp=True`."""
import os
import re
import shutil

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout
from conan.tools.files import copy, load
from conan.tools.system.package_manager import Apt

# Each part, and the packages of Debian that have its library.
PARTS = {"mpi": ("libopenmpi-dev", "openmpi-bin"), "tbb": ("libtbb-dev",), "zlib": ("zlib1g-dev",), "tcp": ("libssl-dev",), "zstd": ("libzstd-dev",),
         "jpeg": ("libjpeg-dev", "libpng-dev"), "libpq": ("libpq-dev",), "etcd": ("libcurl4-openssl-dev",), "http": ("libcurl4-openssl-dev",),
         "serve": ("libboost-dev", "libsimdjson-dev")}
OFF = "PARQUET", "TORCH", "NCCL"


class Muster(ConanFile):
    name = "muster"
    license = "Apache-2.0"
    description = "Distributed training for C++: data ingestion, collectives, parameter server, elastic groups"
    settings = "os", "compiler", "build_type", "arch"
    options = {name: [True, False] for name in ("shared", "programs", *PARTS)}
    default_options = {name: False for name in options}

    def set_version(self):
        numbers = re.findall(r"#define MUSTER_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", load(self, os.path.join(self.recipe_folder, "../include/muster/core/version.hpp")))
        self.version = ".".join(numbers)

    def export_sources(self):
        root = os.path.join(self.recipe_folder, "..")
        for name in ("CMakeLists.txt", "LICENSE", "README.md", "CHANGELOG.md"):
            shutil.copy(os.path.join(root, name), self.export_sources_folder)
        for folder in ("cmake", "docs", "include", "python", "src"):  # not from root, whose build folders are large
            copy(self, "*", os.path.join(root, folder), os.path.join(self.export_sources_folder, folder), excludes=("*.png", "*/__pycache__/*", "build/*"))

    def layout(self):
        cmake_layout(self)

    def validate(self):
        check_min_cppstd(self, 20)

    def system_requirements(self):
        apt = Apt(self)
        apt.check(["nlohmann-json3-dev", *(["libcli11-dev"] if self.options.programs else []), *sorted({package for part, packages in PARTS.items() if self.options.get_safe(part) for package in packages})])

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.cache_variables.update({f"MUSTER_WITH_{part.upper()}": "ON" if self.options.get_safe(part) else "OFF" for part in PARTS})
        toolchain.cache_variables.update({f"MUSTER_WITH_{part}": "OFF" for part in OFF})
        toolchain.cache_variables.update({f"MUSTER_BUILD_{what}": False for what in ("TESTS", "EXAMPLES", "BENCHMARKS")})
        toolchain.cache_variables["MUSTER_BUILD_PROGRAMS"] = bool(self.options.programs)
        toolchain.cache_variables["CMAKE_UNITY_BUILD"] = True  # a quarter of the time
        toolchain.cache_variables["CMAKE_UNITY_BUILD_BATCH_SIZE"] = "40"
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()

    def package_info(self):
        self.cpp_info.set_property("cmake_find_mode", "none")  # muster has a CMake package of its own
        self.cpp_info.builddirs = [os.path.join("lib", "cmake", "muster")]
