/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FAKENVML_LOAD_H
#define FAKENVML_LOAD_H

#include "json.h"
#include "state.h"

/* -1 when all is well, else the index of the card that could not be taken. */
int load_machine(struct state *state, const struct json *from);

#endif
