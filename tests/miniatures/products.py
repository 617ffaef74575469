"""Shops in small: products, clothing, storefronts."""

from pathlib import Path

from miniatures.files import touch, write


def sop(root: Path) -> None:
    folder = root / "Stanford_Online_Products"
    header = "image_id class_id super_class_id path"
    train = [f"{n} {n // 3 + 1} 1 bicycle_final/11126556175{n}_{n}.JPG" for n in range(6)]
    test = [f"{n} {11319 + n // 2} 12 toaster_final/21126556175{n}_{n}.JPG" for n in range(4)]
    write(folder / "Ebay_train.txt", header, *train)
    write(folder / "Ebay_test.txt", header, *test)
    touch(folder, (line.split()[-1] for line in train + test))


def inshop(root: Path) -> None:
    folder = root / "inshop"
    rows = [
        ("img/WOMEN/Dresses/id_00000002/02_1_front.jpg", "id_00000002", "train"),
        ("img/WOMEN/Dresses/id_00000002/02_2_side.jpg", "id_00000002", "train"),
        ("img/MEN/Denim/id_00000080/01_1_front.jpg", "id_00000080", "query"),
        ("img/MEN/Denim/id_00000080/01_2_side.jpg", "id_00000080", "gallery"),
    ]
    lines = [f"{path:70}{item:14}{status}" for path, item, status in rows]
    header = "image_name item_id evaluation_status"
    write(folder / "Eval/list_eval_partition.txt", str(len(rows)), header, *lines)
    touch(folder / "Img", (row[0] for row in rows))


def deepfashion_c2s(root: Path) -> None:
    folder = root / "deepfashion_c2s"
    item = "img/CLOTHING/Blouse/id_0000000{}"
    rows = [
        (f"{item.format(one)}/comsumer_0{n}.jpg", f"{item.format(one)}/shop_01.jpg", one, status)
        for one, status in ((1, "train"), (2, "val"), (3, "test"))
        for n in (1, 2)  # one shop image in two pairs
    ]
    lines = [f"{pair[0]:60}{pair[1]:60}id_0000000{pair[2]} {pair[3]}" for pair in rows]
    header = "image_pair_name_1 image_pair_name_2 item_id evaluation_status"
    write(folder / "Eval/list_eval_partition.txt", str(len(rows)), header, *lines)
    touch(folder, (path for row in rows for path in row[:2]))


def rp2k(root: Path) -> None:
    touch(
        root / "rp2k/all",
        (
            f"{split}/{name}/{n}.jpg"
            for name in ("可口可乐", "#U53ef#U53e3", "百事", "others")
            for split in ("train", "test")
            for n in range(2)
        ),
    )


def products10k(root: Path) -> None:
    folder = root / "products-10k"
    write(folder / "train.csv", "name,class,group", "1.jpg,0,0", "2.jpg,0,0", "10.jpg,1,0")
    write(folder / "test_kaggletest.csv", "name,class,Usage", "1.jpg,0,Public", "2.jpg,1,Private")
    touch(folder, ["train/1.jpg", "train/2.jpg", "train/10.jpg", "test/1.jpg", "test/2.jpg"])


def shopee(root: Path) -> None:
    folder = root / "shopee-product-matching"
    write(
        folder / "train.csv",
        "posting_id,image,image_phash,title,label_group",
        'train_1,aa.jpg,94974f937d4c2433,"Paper, ""Bag""",249114794',
        "train_2,aa.jpg,94974f937d4c2433,Kertas,2937985045",
        "train_3,aa.jpg,94974f937d4c2433,Kertas lagi,249114794",
        "train_4,bb.jpg,af3f9460c2838f0f,Double Tape,2937985045",
    )
    touch(folder / "train_images", ["aa.jpg", "bb.jpg"])


def aliproducts(root: Path) -> None:
    paths = ["train/05201/1.jpg", "train/05201/2.png", "train/7/3.jpg", "val/05201/4.jpg"]
    touch(root / "AliProducts", paths)


def hm(root: Path) -> None:
    folder = root / "h-and-m-personalized-fashion-recommendations"
    write(
        folder / "articles.csv",
        "article_id,product_code,prod_name",
        '0108775015,0108775,"Strap top, basic"',
        "0108775044,0108775,Strap top",
        "0110065001,0110065,OP T-shirt",
    )
    touch(folder / "images", ["010/0108775015.jpg", "010/0108775044.jpg"])


def fashion200k(root: Path) -> None:
    folder = root / "fashion200k"
    item = "women/dresses/casual_and_day_dresses/{}/{}_{}.jpeg"
    rows = {
        "dress_train": [item.format(51727804, 51727804, n) for n in (0, 1)],
        "top_train": [item.format(60000001, 60000001, 0)],
        "dress_test": [item.format(70000002, 70000002, n) for n in (0, 1)],
    }
    for name, paths in rows.items():
        lines = [f'{path}\t0.9\tblack "knee" dress, long' for path in paths]
        write(folder / f"labels/{name}_detect_all.txt", *lines)
        touch(folder, paths)


def storefronts146(root: Path) -> None:
    paths = ["7-Eleven/google_in_london_1.jpg", "Apple Store/iTunes/google_street_view_14.jpeg"]
    touch(root / "storefront-146", [*paths, "Aldi/notes.txt"])
