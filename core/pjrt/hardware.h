/* TPU chips of this machine, from the PCI bus. Private to this folder. Thread-safe. */
#ifndef TPU_PJRT_HARDWARE_H
#define TPU_PJRT_HARDWARE_H

/* tpu_hardware_count with <root>/sys and <root>/dev in place of /sys and /dev. */
int tpu_hardware_count_at(const char *root);

#endif
