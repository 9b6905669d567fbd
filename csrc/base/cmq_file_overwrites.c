/* cmq_file_overwrites: see cmq_file_overwrites.h. */
#include "base/cmq_file_overwrites.h"

#include <linux/fiemap.h>
#include <linux/fs.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/statfs.h>

#define TYPE_BTRFS UINT64_C(0x9123683E)
#define TYPE_BCACHEFS UINT64_C(0xCA451A4E)
#define TYPE_ZFS UINT64_C(0x2FC12FC1)
#define EXTENTS_MAX 64   /* looked at: those of a segment that is copied once are few */

/* btrfs: `chattr +C`, which files inherit from their directory. */
static bool is_exempt(int descriptor)
{
    int flags = 0;
    return ioctl(descriptor, FS_IOC_GETFLAGS, &flags) == 0 && (flags & FS_NOCOW_FL) != 0;
}

static bool shares_blocks(int descriptor)
{
    struct fiemap *map = calloc(1, sizeof *map + EXTENTS_MAX * sizeof map->fm_extents[0]);
    bool shares = false;
    if (map == NULL) return false;
    map->fm_length = FIEMAP_MAX_OFFSET;
    map->fm_extent_count = EXTENTS_MAX;
    if (ioctl(descriptor, FS_IOC_FIEMAP, map) == 0)
        for (uint32_t i = 0; i < map->fm_mapped_extents && i < EXTENTS_MAX && !shares; i++)
            shares = (map->fm_extents[i].fe_flags & FIEMAP_EXTENT_SHARED) != 0;
    free(map);
    return shares;
}

cmq_overwrites cmq_file_overwrites_of(int descriptor)
{
    struct statfs of;
    if (fstatfs(descriptor, &of) != 0) return CMQ_OVERWRITES_IN_PLACE;
    const uint64_t type = (uint64_t)(uint32_t)of.f_type;
    if (type == TYPE_ZFS || type == TYPE_BCACHEFS || (type == TYPE_BTRFS && !is_exempt(descriptor)))
        return CMQ_OVERWRITES_COPIED;
    return shares_blocks(descriptor) ? CMQ_OVERWRITES_SHARED : CMQ_OVERWRITES_IN_PLACE;
}
