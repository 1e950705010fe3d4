# SPDX-License-Identifier: Apache-2.0
# find_package(devicefusion) defines devicefusion::devicefusion, the shared library, and
# devicefusion::static.
get_filename_component(_devicefusion_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

if(NOT TARGET devicefusion::devicefusion)
  add_library(devicefusion::devicefusion SHARED IMPORTED)
  set_target_properties(devicefusion::devicefusion PROPERTIES
    IMPORTED_LOCATION "${_devicefusion_prefix}/lib/libdevicefusion.so"
    IMPORTED_SONAME "libdevicefusion.so.0"
    INTERFACE_INCLUDE_DIRECTORIES "${_devicefusion_prefix}/include/devicefusion")

  add_library(devicefusion::static STATIC IMPORTED)
  set_target_properties(devicefusion::static PROPERTIES
    IMPORTED_LOCATION "${_devicefusion_prefix}/lib/libdevicefusion.a"
    INTERFACE_INCLUDE_DIRECTORIES "${_devicefusion_prefix}/include/devicefusion"
    INTERFACE_LINK_LIBRARIES "gcc_s;m;pthread;dl")
endif()

unset(_devicefusion_prefix)
