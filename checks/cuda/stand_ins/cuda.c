/* Stands in for the driver: one H200, which CUDA_VISIBLE_DEVICES=-1 hides. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define NO_DEVICE 100

int cuInit(unsigned flags) {
  const char *visible = getenv("CUDA_VISIBLE_DEVICES");
  return visible != NULL && strcmp(visible, "-1") == 0 ? NO_DEVICE : 0;
}
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGet(int *device, int number) { *device = number; return 0; }
int cuDeviceGetName(char *name, int length, int device) {
  strncpy(name, "NVIDIA H200", length);
  return 0;
}
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = (size_t)140 << 30; return 0; }
int cuMemGetInfo_v2(size_t *left, size_t *total) { *left = *total = (size_t)140 << 30; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  *value = attribute == 75 ? 9 : 0; /* the compute capability is 9.0 */
  return 0;
}
